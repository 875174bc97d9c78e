"""Prompts of six kinds, for measuring where speculation pays. Written for small models."""

from __future__ import annotations

_FUNCTION = """def total_price(items):
    total = 0
    for item in items:
        price = item["price"]
        amount = item["amount"]
        total = total + price * amount
    return total

def print_receipt(items):
    for item in items:
        print(item["name"], item["amount"], item["price"])
    print("Total:", total_price(items))
"""

_CLASS = """class Counter:
    def __init__(self):
        self.values = {}

    def add(self, word):
        if word in self.values:
            self.values[word] = self.values[word] + 1
        else:
            self.values[word] = 1

    def most_common(self):
        best = None
        for word in self.values:
            if best is None or self.values[word] > self.values[best]:
                best = word
        return best
"""

_HARBOUR = (
    "The old harbour of Lindvik was closed to fishing boats in 1974, when the new breakwater "
    "was finished two miles to the north. For thirty years the quay stood empty. In 2005 the "
    "town council sold the warehouses to a group of carpenters, who turned them into workshops. "
    "Today forty people work there. They build small wooden boats, repair furniture and teach "
    "evening classes. The council still owns the quay itself, and every summer it holds a market "
    "there that brings several thousand visitors to the town."
)

_BEES = (
    "Honeybees find food by sending scouts. A scout that has found flowers returns to the hive "
    "and dances on the comb. The angle of the dance shows the direction of the flowers relative "
    "to the sun, and its length shows how far away they are. Other bees follow the dancer closely "
    "and then fly out to search. If the food is good, they dance as well when they return, and "
    "the number of visitors grows. If the flowers are empty, the dances stop."
)

_LETTER = (
    "Dear Sir or Madam, I am writing to inform you that the washing machine which I bought from "
    "your shop on the third of May no longer works. It makes a loud noise and does not heat the "
    "water. I would be grateful if you could send somebody to repair it, or else replace the "
    "machine. I still have the receipt. Yours faithfully, Anna Berg"
)

PROMPTS: dict[str, tuple[str, ...]] = {
    "chat": (
        "Explain in a few paragraphs why the sky is blue and why sunsets are red.",
        "What should I think about before adopting a dog? Give me a detailed answer.",
        "Tell me how bread is made, step by step, and why each step matters.",
    ),
    "code edit": (
        f"Rename the variable total to amount_due here and return all of the code:\n\n{_FUNCTION}",
        f"Add a docstring to every function here. Return the whole code:\n\n{_FUNCTION}",
        f"Add a method called clear that empties the counter. Return the whole class:\n\n{_CLASS}",
    ),
    "summarise": (
        f"Summarise this text in three sentences:\n\n{_HARBOUR}",
        f"Summarise this text in three sentences:\n\n{_BEES}",
        f"List the main facts of this text, quoting its words where possible:\n\n{_HARBOUR}",
    ),
    "json": (
        "Return a JSON array of five countries with the keys name, capital and population.",
        "Return a JSON array describing four books with the keys title, author, year and genre.",
        "Return a JSON object for a user profile with name, address, phone numbers and hobbies.",
    ),
    "rewrite": (
        f"Rewrite this letter in a friendly, informal tone:\n\n{_LETTER}",
        f"Rewrite this text so that a child of eight understands it:\n\n{_BEES}",
        f"Rewrite this text in the past tense, sentence by sentence:\n\n{_BEES}",
    ),
    "random": (
        "Continue this list of random words with many more: zebra, quorum, flint, oboe, wick,",
        "Write a long line of random numbers and letters like 7f2K, 9xQ1, 0bZz, 4mW8,",
        "Write nonsense sentences in which no two words belong together. Write at least ten.",
    ),
}
"""Kinds of prompts, each with its prompts."""
