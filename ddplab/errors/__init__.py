"""What people see when it goes wrong, found by its words: `python -m ddplab why "message"`, or a log piped to it.

`entries/*.toml` hold what we know, a page for each error; `book` reads them, `patterns` their words, `log` reads a
log, `events` finds those words in it, `find` chooses the event that leads, `ask` takes a few words for a question,
`say` words the answer, and `index` finds in the installed torch where a message is raised.
Nothing here imports torch: who has an error on the screen wants an answer now.
"""
