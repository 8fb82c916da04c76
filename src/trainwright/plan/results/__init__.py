"""One file per kind of result document; each is a flat, frozen record."""
