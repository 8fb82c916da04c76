"""The compiled core, behind one name: only verbs import it."""
