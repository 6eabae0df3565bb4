"""Tables: escaped in one place, whatever stands in a cell, and the same rows as text, HTML and Markdown."""

from ddplab.tables import HTML, brief, html_table, markdown_table, marked, text_table

HEADS, ROWS = ["name", "a<b"], [["x & y", "1"], ["`code`", "22"]]


def test_what_stands_in_a_cell_is_escaped_and_html_is_not():
    page = html_table(HEADS, [*ROWS, [HTML("<b>bold</b>"), "<i>"]])
    assert "x &amp; y" in page and "a&lt;b" in page and "&lt;i&gt;" in page and "<td><b>bold</b></td>" in page


def test_backticks_are_code_in_sentences_alone():
    assert "<td>`code`</td>" in html_table(HEADS, ROWS)
    assert "<td><code>code</code></td>" in html_table(HEADS, ROWS, prose=True)
    assert marked("`a<b`") == "<code>a&lt;b</code>"


def test_a_table_names_its_columns_and_rows():
    page = html_table(["", "n"], [["rank 0", "1"]], label="who & what", row_heads=True, bold=0)
    assert '<th scope="col">n</th>' in page and '<th scope="row">rank 0</th>' in page and "<th></th>" not in page
    assert 'aria-label="who &amp; what"' in page and '<tr style="font-weight:bold">' in page


def test_text_is_flush_right_and_markdown_keeps_its_bars():
    assert text_table(HEADS, ROWS) == "  name  a<b\n x & y    1\n`code`   22"
    assert markdown_table(["a", "b"], [["1|2", "3"]]) == "| a | b |\n|---|---|\n| 1\\|2 | 3 |"


def test_a_number_is_brief():
    assert (brief(0.123456), brief(3), brief("x")) == ("0.1235", "3", "x")
