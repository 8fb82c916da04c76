"""Files in and out: one module per format; they know the nouns and none of the verbs."""
