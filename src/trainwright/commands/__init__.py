"""The public surface: one module per command, each a function and what it returns.

These modules join the parts: they read inputs (`formats`), ask a verb (`planning`, `partitioning`)
and return a result that prints and saves itself. Heavy imports happen inside the calls, so that
`import trainwright` and `trainwright --help` stay quick.
"""
