"""Errors that learners meet in any lesson, and what to say where the lesson has no words of its own for them."""

import re
from collections.abc import Mapping

COMMON = {
    "initialize the default process group twice": "`launch` has initialised the process group. Leave that line.",
    "should not be the same as the rank of": "A rank cannot send to itself, or receive from itself.",
    "pair.cc": "Does a rank name itself? `send` names who gets it, `recv` whose it was.",  # gloo has no such connection
    "'NoneType'": "`None` comes without a `return`, from `all_reduce`, and as the `.grad` of what took no part.",
    "does not require grad": "`.item()`, `.detach()`, `no_grad` and a new tensor cut the way back to the weights.",
    "leaf Variable": "Weights are changed inside `with torch.no_grad():`.",
    "backward through the graph a second time": "One `backward()` for each forward pass.",
    "Expected parameter `tensor`": "A collective takes a tensor. `torch.tensor(…, device=device())` makes one.",
    "ReduceOp' has no attribute": "There is no such operation. `dist.ReduceOp` has SUM, MAX, MIN, PRODUCT and AVG.",
    "'Tensor' object has no attribute 'all_": "That is a function of `torch.distributed`: `dist.all_…(t)`.",
    "'float' object has no attribute 'backward'": "After `item()` it is a plain number. `backward()` wants the tensor.",
    "log_softmax_lastdim_kernel_impl": "`F.cross_entropy` takes what the network says first, and then the labels.",
    "target with class probabilities": "Without `argmax`: `F.cross_entropy` takes all that the network says.",
    "SIGABRT": "gloo ends a rank that gets more or fewer numbers than it wants. Do all ranks make the same calls?",
    "derivative for aten::floor_divide": "`//` drops the fraction, and no gradient goes through it: `/`.",
    "torch.device, not function": "`device` is a function: `device()`, with its parentheses.",
    "object is not callable": "What stands before the parentheses is no function: one `()` too many?",
    "'generator' object has no": "It gives one thing after the other: a loop, or `list(…)`, goes through them.",
    "'str' object has no": "That is a text. A loop over a dictionary goes through its keys: `.values()`.",
    "'list' object has no": "That is a list: it is what is in it that is asked.",
    "'tuple' object has no": "That is a tuple: it is what is in it that is asked.",
    "'function' object has no": "That is the function itself. What it returns comes with its parentheses.",
    "'int' object is not iterable": "`sum`, `list` and a loop want many things, and that is one number.",
    "'float' object is not iterable": "Many things are wanted, or a tensor, and that is one plain number.",
    "incompatible function arguments": "An argument is of another kind than the call takes. In which order does it?",
    "invalid combination of arguments": "The call takes no such arguments: their names, their order, their kinds?",
    "unexpected keyword argument": "The call has no argument of that name.",
    "must be tuple of Tensors": "It wants the tensors in one list: `[… for … in …]`.",
    "module 'torch": "There is no such name there. How is it spelt?",
    "list assignment index": "Has the list a place for each rank? `[None] * dist.get_world_size()`",
    "cannot access local variable": "What a function assigns to, by `+=` too, is its own. Has it a value on each way?",
    "generator=int": "`generator=` takes a `torch.Generator()`, seeded by its `manual_seed(…)`.",
    "on the same device": "One of them was made elsewhere: `device=…`, or `.to(…)`, brings it there.",
    "Boolean value of Tensor": "A tensor of several numbers stands where one number, or a truth, is needed.",
    "'method' object": "A method is called with parentheses behind its name: without them it is the method itself.",
    "is not defined": "Python knows nothing of that name: is it imported, and spelt as it was?",
    "can't multiply sequence": "A list, a tuple or a text is no number: it is what is in it that is multiplied.",
    "'tuple' and ": "One of the two is a tuple. `a, b = …` takes it apart.",
    "and 'tuple'": "One of the two is a tuple. `a, b = …` takes it apart.",
    "'list' and ": "One of the two is a list. Is its sum wanted, one of its numbers, or each in a loop?",
    "and 'list'": "One of the two is a list. Is its sum wanted, one of its numbers, or each in a loop?",
    "'str' and ": "One of the two is a text, and no number.",
    "and 'str'": "One of the two is a text, and no number.",
    "function_or_method' and ": "One of the two is a method: with parentheses behind its name it is called.",
    "and 'builtin_function_or_method'": "One of the two is a method: with parentheses behind its name it is called.",
    "'function' and ": "One of the two is a function: with parentheses behind its name it is called.",
    "and 'function'": "One of the two is a function: with parentheses behind its name it is called.",
    "can only concatenate list": "`+` joins two lists. `[…]` makes a list of one thing.",
    "operand type(s) for ^": "`^` is no power in Python: that is `**`.",
    "No such file or directory": "No file has that name, or none has it any more: has another rank renamed it?",
    "result type Float can't be cast": "A tensor of whole numbers cannot hold a fraction: make it of floats.",
}


def hint_for(text: str, hints: Mapping[str, str]) -> str:
    """Return the hint whose words are in an error's text, or nothing."""
    return next((hint for words, hint in hints.items() if words in text), "")


def first_line(text: str) -> str:
    """Return the first line of an error's text, of 140 characters at most.

    An error that was caught in a replica's thread or in a worker process has its own words in the last line, after all
    of its traceback, what a virtual GPU adds left out; torch.distributed tells what it got instead on another line.
    """
    own = text.partition("\n(These are ")[0].strip()
    first, *_, last = re.sub(r"\s+but got ", " but got ", own).splitlines() * 2 or ["", ""]
    line = last.partition(": ")[2] or last if first.startswith("Caught ") else first
    return line if len(line) <= 140 else line[:139] + "…"
