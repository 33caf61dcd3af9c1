# SPDX-License-Identifier: MIT
"""What self-written conversations begin with: system prompts, first words of questions, whole questions.

A chat model left to itself asks the same few kinds of question again and again. First words push it to other
kinds, and whole questions cover what users of any model ask for: explanations, stories, code, arithmetic, and
work on texts, which are docstrings and help topics of the running Python. The target writes all answers.
"""

from __future__ import annotations

import ast
import random
import sysconfig
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

__all__ = ["FOLLOW_UPS", "OPENINGS", "SYSTEMS", "question"]


def _listed(text: str) -> tuple[str, ...]:
    return tuple(" ".join(part.split()) for part in text.split("|"))


SYSTEMS = (
    "You are a helpful assistant.",
    "You are a helpful, respectful and honest assistant. Answer as briefly as possible.",
    "",
    "You are an expert programmer. Answer with code and short explanations.",
    "You are a patient teacher who explains things to children.",
    "Answer in one sentence.",
    "You are a travel guide.",
    "You are a doctor. Give careful, general information.",
    "You are a pirate. Always answer like a pirate.",
    "You are a writing assistant. You correct and improve texts.",
    "You are an AI assistant that answers in bullet points.",
    "You are a chef who loves simple recipes.",
    "You are a mathematics tutor. Think step by step.",
    "You are a historian.",
    "You summarise texts that the user gives you.",
    "You are a translator.",
    "You are a customer support agent of an online shop.",
    "You are a career coach.",
    "You are a poet.",
    "Du bist ein hilfreicher Assistent.",
    "You are a Linux system administrator.",
    "You are a data scientist. Use Python where it helps.",
    "Extract information exactly as asked, nothing else.",
    "You are a storyteller for bedtime stories.",
    "You are a financial adviser; explain terms in plain words.",
    "You are a fitness trainer.",
    "You are a scientist who answers with facts and numbers.",
    "You play a role the user gives you.",
    "Today is Monday. You are a personal assistant who plans the day.",
    "You are a lawyer who explains law in plain language.",
    "You are a critic of films and books.",
    "Answer in JSON where possible.",
    "You are an English teacher. You explain grammar.",
)
OPENINGS = (
    "Write ",
    "Write a ",
    "Write a short ",
    "Write a Python ",
    "Write an email ",
    "How ",
    "How do I ",
    "How can ",
    "What ",
    "What is ",
    "What are ",
    "Why ",
    "Explain ",
    "Explain the ",
    "Can you ",
    "Could you ",
    "I ",
    "I want ",
    "I have ",
    "My ",
    "Give me ",
    "Give an ",
    "List ",
    "Create ",
    "Compare ",
    "Describe ",
    "Tell me ",
    "Summarize ",
    "Summarize the following article:\n\n",
    "Summarize this text in two sentences:\n\n",
    "Rewrite ",
    "Translate ",
    "Is ",
    "Are ",
    "Should ",
    "Where ",
    "Who ",
    "When ",
    "Which ",
    "If ",
    "Imagine ",
    "Let's ",
    "Please ",
    "Hello",
    "Hi",
    "Thanks",
    "Find ",
    "Solve ",
    "Calculate ",
    "A ",
    "The ",
    "In ",
    "For ",
    "def ",
    "```python\n",
    "import ",
    "Fix ",
    "Improve ",
    "Design ",
    "Plan ",
    "Suggest ",
    "Act as ",
    "You are ",
    "Based on the following text, answer the question.\n\n",
    "Here is a text:\n\n",
    "Extract ",
    "Classify ",
    "Correct the grammar: ",
    "Complete the sentence: ",
    "Generate ",
    "Discuss ",
    "Analyze ",
    "Develop ",
    "Provide ",
    "What would ",
    "What should ",
    "Do you ",
    "Help me ",
    "Was ",
    "¿",
    "Wie ",
    "Pouvez-vous ",
)
FOLLOW_UPS = (
    "Can you explain that in more detail?",
    "Why?",
    "Thank you!",
    "Can you make it shorter?",
    "Give me an example.",
    "Rewrite it in a more formal tone.",
    "What are the main drawbacks?",
    "Summarize your answer in one sentence.",
    "And how would that work in practice?",
    "Explain it to a ten year old.",
    "Can you turn that into a list?",
    "Please continue.",
    "Are you sure?",
    "What should I do first?",
    "Now write it as an email.",
    "Is there another way?",
    "Can you add a title?",
    "What did you mean by the second point?",
    "Translate your answer into Spanish.",
    "Write it in Python.",
    "Add comments to the code.",
    "Make it funnier.",
    "How much does that cost?",
    "What is the most important thing to remember?",
)
_TOPICS = _listed(
    """
    photosynthesis | the French Revolution | black holes | sourdough bread | machine learning | the
    stock market | climate change | ancient Rome | the human heart | bicycles | chess openings |
    volcanoes | electric cars | jazz music | vaccines | the water cycle | coffee | remote work |
    dinosaurs | the Great Wall of China | cybersecurity | yoga | gardening in small spaces | the
    Renaissance | solar panels | impressionist painting | the solar system | time management | honey
    bees | public speaking | earthquakes | the printing press | sleep | cooking pasta | blockchain | the
    Amazon rainforest | democracy | football | antibiotics | glaciers | personal budgets | the Olympic
    Games | whales | the internet | learning a language | Shakespeare | gravity | recycling | dogs | the
    Silk Road | robots | insulin | poetry | mountains | tea ceremonies | the moon landing | job
    interviews | photography | inflation | penguins | space telescopes | DNA | trains | meditation |
    city planning | knitting | the Cold War | tides | guitars | nutrition | startups | databases | Greek
    mythology | rice farming | hurricanes | airplanes | moving to a new city | a birthday party | a lost
    cat | a lighthouse keeper | an old clockmaker | a trip to Japan | a noisy neighbour | a broken
    laptop | a school project | a marathon | a vegetable soup | a job application | a first date | a
    rainy day | an online shop | a small library | renting a flat | a wedding speech | houseplants |
    camping | board games | fractions | percentages | prime numbers | probability | triangles | linear
    equations | sorting algorithms | linked lists | recursion | regular expressions | unit tests | REST
    APIs | SQL joins | git branches | operating systems | compilers | neural networks | graph search |
    binary numbers | hash tables
    """
)
_ABOUT = (
    "What is {t}?",
    "Explain {t} in simple terms.",
    "Write a short story about {t}.",
    "Write a poem about {t}.",
    "Give me five facts about {t}.",
    "What are the advantages and disadvantages of {t}?",
    "How did {t} change the world?",
    "Write a blog post about {t}.",
    "Tell me something surprising about {t}.",
    "I want to learn about {t}. Where should I start?",
    "Write an email to a friend about {t}.",
    "Make a list of ten things to know about {t}.",
    "What are common mistakes people make with {t}?",
    "Compare {t} and {u}.",
    "How are {t} and {u} related?",
    "Write a dialogue between two people about {t}.",
    "Explain {t} as if I were five years old.",
    "Create a quiz with three questions about {t}.",
    "Write a product description about {t}.",
    "What would happen without {t}?",
    "Give a step-by-step guide to {t}.",
    "Who should care about {t}, and why?",
    "Write a persuasive paragraph about {t}.",
    "Summarize the history of {t}.",
    "Describe {t} in one sentence.",
    "Can you recommend a plan for a week that includes {t}?",
    "Draft an outline for an essay on {t}.",
    "Write a speech about {t}.",
    "Pretend you are a reporter. Write a news item about {t}.",
    "What questions should I ask an expert on {t}?",
    "Write a haiku about {t}.",
    "I am nervous about {t}. What should I do?",
)
_CODE = (
    "Write a Python function that {x}.",
    "Write a function in Python that {x}. Include a docstring.",
    "How do I write code that {x}?",
    "Implement a JavaScript function that {x}.",
    "Write a C program that {x}.",
    "Write a Python class for {y}.",
    "Show me an example of {y} in Python.",
    "Explain what {y} means in programming, with an example.",
    "Write unit tests for a function that {x}.",
)
_TASKS = _listed(
    """
    reverses a string | counts the vowels in a text | returns the largest number of a list | checks
    whether a number is prime | merges two sorted lists | removes duplicates from a list | computes the
    factorial of n | returns the n-th Fibonacci number | converts Celsius to Fahrenheit | reads a CSV
    file and prints its columns | finds the longest word in a sentence | checks if a word is a
    palindrome | sums the digits of an integer | flattens a nested list | counts words in a file | sorts
    a list of dictionaries by a key | rotates a list by k places | finds the second smallest element |
    validates an email address | generates a random password | computes the mean and the median | finds
    common elements of two lists | converts a number to binary | prints a multiplication table |
    downloads a web page | draws a triangle of stars | checks if brackets are balanced | returns the
    greatest common divisor | implements binary search | multiplies two matrices
    """
)
_THINGS = _listed(
    """
    a bank account | a stack | a queue | a linked list | a list comprehension | a decorator | a
    generator | inheritance | exception handling | a dictionary | a binary tree | a context manager |
    recursion | a lambda function | multithreading | a timer | a shopping cart | a text adventure game |
    a simple calculator | file handling
    """
)
_SUMS = (
    "{n} apples cost {a} dollars. How much do {b} apples cost?",
    "A train travels {a} km in {b} hours. What is its average speed?",
    "What is {a} + {b} * {n}?",
    "Tom has {a} marbles and gives {n} to Anna. Then he buys {b} more. How many does he have?",
    "Solve for x: {n}x + {a} = {b}.",
    "What is {n} percent of {a}?",
    "A rectangle is {a} cm long and {n} cm wide. What are its area and perimeter?",
    "If {n} workers need {a} days to build a wall, how long do {b} workers need?",
    "Is {a} a prime number? Explain.",
)
_TEXTS = (
    "Summarize the following text.\n\n{d}",
    "{d}\n\nWhat is the main point of the text above?",
    "Read this text and list its key points:\n\n{d}",
    "{d}\n\nExplain this in simple words.",
    "Here is some documentation:\n\n{d}\n\nGive an example of how to use it.",
    "{d}\n\nWrite three questions that this text answers.",
    "Rewrite this text so that it is easier to read:\n\n{d}",
)
_STUBS = (
    "Complete the following Python function:\n\n```python\n{s}```",
    "{s}",
    "Write the body of this function.\n\n{s}",
    "```python\n{s}```\nFinish this code.",
)

_MAX_STUB = 900
_MIN_TEXT, _MAX_TEXT = 300, 3500
_CUTS = (600, 1200, 2400, _MAX_TEXT)
_NO_TEXTS = ("test", "idlelib", "lib2to3", "site-packages", "dist-packages", "turtledemo", "ensurepip")


def question(rng: random.Random) -> str:
    """A first question, drawn from all kinds."""
    kind = rng.random()
    one, other = rng.sample(_TOPICS, 2)
    if kind < 0.40:
        return rng.choice(_ABOUT).format(t=one, u=other)
    if kind < 0.55:
        return rng.choice(_CODE).format(x=rng.choice(_TASKS), y=rng.choice(_THINGS))
    stubs, texts = _sources()
    if kind < 0.75 and stubs:
        return rng.choice(_STUBS).format(s=rng.choice(stubs))
    if kind < 0.85 or not texts:
        return rng.choice(_SUMS).format(n=rng.randint(2, 20), a=rng.randint(10, 300), b=rng.randint(3, 90))
    return rng.choice(_TEXTS).format(d=rng.choice(texts)[: rng.choice(_CUTS)])


@lru_cache
def _sources() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(beginnings of functions, texts) of the running Python's standard library."""
    stubs: list[str] = []
    texts: list[str] = []
    for path in _modules():
        try:
            source = path.read_text(encoding="utf-8")
            tree = ast.parse(source)
        except (OSError, SyntaxError, ValueError):
            continue
        text = ast.get_docstring(tree)
        if text and len(text) > _MIN_TEXT:
            texts.append(text)
        lines = source.splitlines()
        stubs += (stub for node in ast.walk(tree) if (stub := _stub(node, lines)))
    from pydoc_data.topics import topics

    texts += (text for _, text in sorted(topics.items()) if len(text) > _MIN_TEXT)
    return tuple(stubs), tuple(texts)


def _modules() -> Iterator[Path]:
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted([*root.glob("*.py"), *root.glob("*/*.py")]):
        if path.relative_to(root).parts[0] not in _NO_TEXTS:
            yield path


def _stub(node: ast.AST, lines: list[str]) -> str:
    """A function's head and docstring, "" for what is none or too long."""
    if not isinstance(node, ast.FunctionDef) or len(ast.get_docstring(node) or "") <= 40:
        return ""
    head = lines[node.lineno - 1 : node.body[0].end_lineno]
    n_indent = len(head[0]) - len(head[0].lstrip())
    text = "\n".join(line[n_indent:] for line in head) + "\n"
    return text if len(text) < _MAX_STUB else ""
