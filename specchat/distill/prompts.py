"""Questions to let a target answer: many kinds of task, combined with many subjects.

A draft has to guess how the target writes, not what is true, so breadth counts: prose, lists,
code, JSON, letters, corrections, quoted text. None of them is one of the benchmark's prompts.
"""

from __future__ import annotations

import numpy as np

_SUBJECTS = (
    """
the moon's phases|keeping houseplants alive|a volcano|learning to swim|medieval castles
the water cycle|cooking rice|public libraries|a bicycle's gears|how magnets work
saving money as a student|the Roman Empire|writing a short story|glaciers|a job interview
photosynthesis|making friends in a new town|electric cars|jazz music|a balanced diet
the printing press|time zones|owls|planning a birthday party|earthquakes
remote work|chess openings|the human heart|recycling plastic|painting a room
a lighthouse keeper|solar panels|growing tomatoes|the Silk Road|sleeping better
computer passwords|ants and their colonies|a long train journey|renting a flat|the ozone layer
learning a language|coral reefs|coffee|the first aeroplanes|mountain weather
fixing a leaking tap|vaccines|a school play|penguins|negotiating a salary
black holes|knitting|the invention of paper|city traffic|mushrooms
running a marathon|ocean currents|an old bookshop|bridges|yoga
dinosaurs|a lost dog|making cheese|the stock market|fireflies
camping in the rain|ancient Egypt|batteries|a village market|being on time
whales|photography for beginners|desert animals|email etiquette|the Olympic Games
wind turbines|a haunted house|moving abroad|beekeeping|the periodic table
public speaking|salt|a broken friendship|satellites|winter clothes
""".replace("\n", "|")
    .strip("|")
    .split("|")
)

_TASKS = """
Explain {s} to a beginner.
Write a short paragraph about {s}.
What are the most important facts about {s}?
Give me five tips about {s}.
Write a poem about {s}.
Make a numbered list of eight things connected with {s}.
Tell me a story that has to do with {s}.
What are the advantages and disadvantages of {s}?
Write an email to a colleague about {s}.
Describe {s} in two sentences.
Why do people care about {s}?
Write a dialogue between two friends about {s}.
What are common mistakes when it comes to {s}?
Give a step-by-step plan for someone interested in {s}.
Write the introduction of an essay on {s}.
Ask me three questions about {s}, and answer each of them.
What would a sceptic say about {s}?
Write a Wikipedia-like article about {s}.
Compare {s} with something surprising.
Summarise what is known about {s}.
Write a product description inspired by {s}.
How has {s} changed over the last hundred years?
Invent a quiz with four options per question about {s}.
Write a diary entry about {s}.
Return a JSON object with the keys title, summary and keywords about {s}.
Make a Markdown table with three rows about {s}.
What is {s}?
Hi! Can you help me with {s}?
Write a news report about {s}.
Explain {s} in simple words, then in scientific words.
""".strip().split("\n")

_CODE = """
Write a Python function that {c}.
Write a Python function that {c}, with a docstring and an example.
Write a JavaScript function that {c}.
Write a small C program that {c}.
Explain step by step how to write code that {c}.
Write unit tests for a function that {c}.
""".strip().split("\n")

_PROBLEMS = (
    """
reverses a string|counts the words of a text|finds the largest number in a list
checks whether a number is prime|sorts a list of names|reads a CSV file and sums a column
removes duplicates from a list|converts Celsius to Fahrenheit|computes a factorial
merges two dictionaries|finds all vowels|computes the n-th Fibonacci number
checks whether a word is a palindrome|rolls two dice|prints a multiplication table
groups words by their first letter|parses a date|keeps a stack|searches a sorted list
counts how often each letter occurs|validates an email address|downloads a web page
""".replace("\n", "|")
    .strip("|")
    .split("|")
)

_TEXTS = (
    "The bakery on Mill Street opens at six in the morning. On most days there is a queue before "
    "the lights go on. Marta, who has run it for twelve years, knows what nearly everyone will "
    "ask for. When a stranger comes in, she recommends the rye bread with walnuts.",
    "A river carries sand and stones as long as it flows fast. Where it slows down, it drops "
    "them, the heaviest first. In this way a delta grows at the mouth, year by year, and the "
    "river has to find new ways around what it has built itself.",
    "Our team met on Tuesday to talk about the delayed release. The tests take four hours and "
    "fail at random. We agreed to split them into two groups, to fix the three worst ones this "
    "week, and to meet again on Friday at ten.",
    "Glass is made of sand, soda and lime, which melt together at about 1500 degrees. As it cools "
    "it becomes thick like honey and can be blown, poured or rolled. It has to cool slowly in the "
    "end, for otherwise it cracks.",
    "Hello Tom, thank you for lending me your tent. We had three dry days and one very wet one. "
    "I am afraid that one of the poles broke in the wind, so I have ordered a new one, which "
    "should arrive at your house next week. See you soon, Ines",
    "for number in range(1, 21):\n    if number % 3 == 0:\n        print('fizz', number)\n"
    "    else:\n        print(number)",
)

_TEXT_TASKS = """
Summarise this text in one sentence:
Rewrite this in simpler words:
Correct any mistakes and return the whole text:
Translate this into French:
List the facts of this text as bullet points:
Continue this text:
Write three questions about this text, with answers:
Make this text more formal:
Repeat this text word for word, then say what it is about:
""".strip().split("\n")


def question(rng: np.random.Generator) -> str:
    """One of some ten thousand questions, drawn by `rng`."""

    def one_of(items: list[str] | tuple[str, ...]) -> str:
        return items[int(rng.integers(len(items)))]

    kind = rng.random()
    if kind < 0.68:
        return one_of(_TASKS).format(s=one_of(_SUBJECTS))
    if kind < 0.84:
        return one_of(_CODE).format(c=one_of(_PROBLEMS))
    return f"{one_of(_TEXT_TASKS)}\n\n{one_of(_TEXTS)}"
