"""Questions as users ask them: of many kinds, each about something else.

None is one of `prompts.json`, nor close to one: heads are tried with those. `UNSEEN` is about what
nothing else here is about, so heads that have learnt from the rest can be tried with it too.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from common import HERE


class Draft(NamedTuple):
    """A question, or the begin of one that the model ends."""

    text: str
    is_whole: bool


TOPICS = (
    "volcanoes", "chess", "the moon", "bicycles", "democracy", "bees", "music theory", "oak trees",
    "ocean currents", "steam trains", "algebra", "oil painting", "sleep", "computer memory",
    "the French revolution", "rivers", "dogs", "vegetable gardens", "snow", "friendship",
    "inflation", "public libraries", "photography", "the human heart", "learning languages",
    "robots", "mountain climbing", "green tea", "football", "plastic waste", "ants", "dreams",
    "suspension bridges", "primary schools", "wind turbines", "old maps", "the Roman empire",
    "migrating birds", "clouds", "vaccines", "earthquakes", "the stock market", "yoga", "databases",
    "black holes", "jazz", "ancient Egypt", "coffee", "stress at work", "running a marathon",
    "pasta sauces", "machine learning", "the water cycle", "whales", "Shakespeare", "glass",
    "cryptography", "deserts", "job interviews", "saving for retirement", "DNA", "rice farming",
    "the Silk Road", "magnets", "good posture", "poetry", "budget travel", "cats", "recycling",
    "the nervous system", "Mars", "stage fright", "woodworking", "knitting", "the printing press",
    "antibiotics", "tides", "first aid", "time management", "chemical bonds", "operating systems",
    "the Cold War", "sharks", "cheese", "negotiation", "probability", "gravity", "soil",
    "electric cars", "the immune system", "opera", "fractions", "human rights", "tropical forests",
    "swimming", "soap", "nuclear energy", "allergies", "dinosaurs", "meditation", "clean code",
    "wedding speeches", "house plants", "hurricanes", "the Renaissance", "batteries", "proteins",
    "moving to a new city", "anxiety", "the periodic table", "origami", "camping", "elections",
    "sorting algorithms", "copper", "newspapers", "horses", "vitamins", "tectonic plates",
    "a broken phone", "a quiet neighbour", "a lost key", "a dragon who is afraid of fire",
    "two sisters and a secret garden", "a robot that learns to paint", "an old clock", "a storm",
    "a detective in a small village", "a spaceship with an odd crew", "a wise old turtle",
    "a boy who talks to birds", "a forgotten library", "a violin maker", "a journey by sled",
    "mental arithmetic", "noise in cities", "fishing", "healthy breakfasts", "supply and demand",
    "light and colour", "neural networks", "unit tests", "fair trade", "museums", "solar panels",
    "working from home", "body language", "the Olympic games", "logic puzzles", "cell division",
    "interest rates", "the ozone layer", "salt", "caves", "comets", "penguins", "bamboo", "pottery",
    "teamwork", "running a small shop", "data privacy", "the Great Wall of China", "evolution",
    "customer complaints", "a late delivery", "a birthday party", "a job application",
)  # fmt: skip
UNSEEN = (
    "octopuses", "the Aztecs", "knee pain", "hash tables", "a shy ghost", "lemon trees", "tennis",
    "public speaking", "glaciers", "the violin", "mortgages", "sourdough starters", "honesty",
    "submarines", "web browsers", "the liver", "a missed train", "kites", "Jupiter",
    "peer pressure",
)  # fmt: skip
TASKS = (
    "Explain {} in simple words.", "What are the most important facts about {}?",
    "Tell me about {}.", "Write a short story about {}.", "Write a poem about {}.",
    "What should I know about {}?", "Give me a list of ideas about {}.",
    "How can I learn more about {}?", "Describe {} to a child.",
    "Write an email to a colleague about {}.", "What are the pros and cons of {}?",
    "Write an essay of three paragraphs about {}.",
    "I want to give a talk about {}. Help me plan it.", "What is the history of {}?",
    "Why does {} matter?", "Write a dialogue between two friends about {}.",
    "What are common mistakes people make with {}?", "Give me five interview questions about {}.",
    "Write a blog post about {}.", "How does {} affect everyday life?", "Make a quiz about {}.",
    "Summarize what is known about {} in a few bullet points.", "Write a letter about {}.",
    "What would happen without {}?", "Give me some tips about {}.",
    "Write a product description about {}.", "Create a weekly plan around {}.",
    "Argue for and against {}.", "Write a song about {}.", "What is the science behind {}?",
    "Which books about {} do you recommend, and why?",
    "Suggest a title and an outline for an article about {}.", "Define {} and give an example.",
    "Write a speech about {}.", "What questions do people often ask about {}? Answer them.",
    "Explique-moi {} en français.", "Write the first page of a novel about {}.",
    "Teach me {} step by step.", "Give me a short introduction to {} for beginners.",
    "I know nothing about {}. Where do I start?",
)  # fmt: skip
PAIRS = (
    "What is the difference between {} and {}?", "Compare {} with {}.",
    "How are {} and {} connected?", "Write a story about {} and {}.",
)  # fmt: skip
OPENINGS = (
    "", "", "", "", "What", "How", "How do I", "How can", "Write", "Explain", "Why", "Why do",
    "Give me", "Can you", "Could you", "Describe", "Create", "I", "I am", "I'm", "I have", "My",
    "Tell me", "Plan", "List", "Write a Python", "Write a Python function that", "Write a short",
    "Compare", "Summarize", "Translate", "Rewrite", "Fix", "Convert", "Calculate", "Is it", "When",
    "Who", "Where", "Which", "Should I", "Help me", "Write a function", "Write a class",
    "Write an SQL query", "Write a shell script", "Write a letter", "Write an email to",
    "Write a story about", "Write a poem", "Imagine", "You are", "Suppose", "Please", "Hi", "Hello",
    "Make a list of", "Give me three", "Give me five", "What's the best way to", "What are the",
    "What is the difference between", "Explain the concept of", "How does", "Solve", "If", "A",
    "The", "In", "Design", "Generate", "Suggest", "Recommend", "Classify", "Identify", "Provide",
    "Develop", "Discuss", "Analyze", "Outline", "Edit", "Correct the grammar", "Paraphrase",
    "Think of", "Come up with", "Name", "Define", "Prove", "Find", "Show me", "Teach me",
    "Recipe for", "Écris", "Wie", "Cómo",
)  # fmt: skip
ABOUT = (
    "How does {}", "Write about {}", "Explain how {}", "I have a question about {}",
    "Explain why {}", "Write a story in which {}", "What are {}", "I'm writing about {}",
    "Regarding {},", "Can {}", "In {},", "Give me advice on {}", "My teacher says that {}",
    "Write a program about {}", "A friend told me that {}",
)  # fmt: skip
LANGUAGES = ("Python", "Python", "Python", "JavaScript", "C", "Java", "Rust", "SQL", "Go")
CODE = (
    "reverses a list", "counts the words of a text", "finds prime numbers",
    "sorts a dictionary by value", "reads a CSV file", "computes a factorial",
    "checks a palindrome", "merges two sorted lists", "finds the second largest number",
    "removes duplicates", "converts temperatures", "draws a triangle", "parses a date",
    "validates an email address", "computes the median", "flattens a nested list", "counts vowels",
    "rolls a dice", "searches a binary tree", "implements a stack", "downloads a file",
    "sends a message", "computes a moving average", "rotates a matrix", "guesses a number",
    "prints a calendar", "encrypts a string", "sums the digits of a number",
    "groups orders by customer", "checks if two words are anagrams", "implements a queue",
    "generates a password", "counts lines",
)  # fmt: skip
OF_CODE = (
    "Write a {} function that {}.", "Write a {} program that {}, with comments.",
    "How do I write {} code that {}?", "Show me in {} how one {}. Explain each step.",
)  # fmt: skip
OF_PASSAGES = (
    "Summarize this text:\n\n{}", "Rewrite this in modern English:\n\n{}",
    "{}\n\nWhat does this mean?", "Translate this into French:\n\n{}",
    "What are the main points of this text?\n\n{}", "Explain this to a student:\n\n{}",
    "Write a title for this text, and say why:\n\n{}",
)  # fmt: skip
PASSAGE = 500
"""Characters."""


def unseen(count: int) -> list[str]:
    """Always the same ones."""
    rng = np.random.default_rng(1)
    return [_any(rng, TASKS[:35]).format(UNSEEN[i % len(UNSEEN)]) for i in range(count)]


def learnt(rng: np.random.Generator) -> Iterator[Draft]:
    """Without an end."""
    passages = _passages()
    while True:
        kind = rng.random()
        if kind < 0.35:
            yield Draft(_any(rng, OPENINGS), is_whole=False)
        elif kind < 0.55:
            yield Draft(_any(rng, ABOUT).format(_any(rng, TOPICS)), is_whole=False)
        elif kind < 0.80:
            yield Draft(_any(rng, TASKS).format(_any(rng, TOPICS)), is_whole=True)
        elif kind < 0.85:
            asked = _any(rng, PAIRS).format(_any(rng, TOPICS), _any(rng, TOPICS))
            yield Draft(asked, is_whole=True)
        elif kind < 0.94:
            asked = _any(rng, OF_CODE).format(_any(rng, LANGUAGES), _any(rng, CODE))
            yield Draft(asked, is_whole=True)
        else:
            yield Draft(_any(rng, OF_PASSAGES).format(_any(rng, passages)), is_whole=True)


def _any(rng: np.random.Generator, which: tuple[str, ...]) -> str:
    return which[int(rng.integers(len(which)))]


def _passages() -> tuple[str, ...]:
    """Of free texts, each up to the end of a sentence."""
    text = (HERE / "public_domain.txt").read_text(encoding="utf-8")
    pieces = (text[start : start + PASSAGE] for start in itertools.count(0, PASSAGE // 3))
    whole = itertools.takewhile(lambda one: len(one) == PASSAGE, pieces)
    cut = (one[one.find(" ") + 1 : one.rfind(".") + 1] for one in whole)
    return tuple(one for one in cut if len(one) > PASSAGE // 2)
