"""How coding agents keep a conversation alive: one module per mechanism, each usable on its own."""

__version__ = "0.1.0"
