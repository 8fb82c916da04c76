"""A page as its elements, for tests that read what it says."""

from __future__ import annotations

from html.parser import HTMLParser


class Page(HTMLParser):
    """Elements by tag, with their attributes and the text right inside them."""

    def __init__(self, text):
        super().__init__()
        self.elements = []
        self.is_open = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs), ""))
        self.is_open = True

    def handle_endtag(self, tag):
        self.is_open = False

    def handle_data(self, data):
        if self.is_open:
            tag, attrs, text = self.elements[-1]
            self.elements[-1] = tag, attrs, text + data

    def all(self, wanted):
        return [(attrs, text) for tag, attrs, text in self.elements if tag == wanted]


def text_of(text):
    """All that is written on a page, with single blanks between words."""
    found = []

    class Words(HTMLParser):
        def handle_data(self, data):
            found.append(data)

    Words().feed(text)
    return " ".join(" ".join(found).split())
