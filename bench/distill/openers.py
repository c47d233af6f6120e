"""How the questions begin that a target makes up for itself, by kind of text.

A model that was taught to answer has read questions, too: behind the control text of a user's turn it writes one (Xu et
al. 2024, Magpie, arXiv 2406.08464). A few first words decide of which kind.
"""

from __future__ import annotations

#: Kinds of text, as Multi-SPIN's Table I has them: code, mathematics, conversation, reading.
KINDS = ("code", "maths", "chat", "reading")

OPENERS: dict[str, tuple[str, ...]] = {
    "code": (
        "Write a Python function",
        "Write a function to",
        "Write a Python program that",
        "Write a Python function to find the",
        "Write a Python function that takes a list",
        "Write a Python function that takes a string",
        "Write a function to check whether",
        "How do I",
        "Implement a",
        "Write code to",
    ),
    "maths": (
        "A",
        "If",
        "How many",
        "Tom has",
        "Maria bought",
        "A farmer has",
        "In a class of",
        "There are",
        "A train",
        "John earns $",
        "Calculate the",
        "Each",
    ),
    "chat": (
        "What is",
        "Explain",
        "Write a short",
        "Can you",
        "How can I",
        "Describe",
        "Give me some",
        "I am planning",
        "Why",
        "Compare",
        "Write an email",
        "Tell me about",
    ),
    "reading": (
        "Read the passage and answer the question.\n\nPassage: The",
        "Read the passage and answer the question.\n\nPassage: In",
        "Read the passage and answer the question.\n\nPassage: During the",
        "Answer the question from the text.\n\nText: The",
        "Answer the question from the text.\n\nText: Scientists",
        "Summarize the following text:\n\nThe",
        "Here is a paragraph about the",
    ),
}
