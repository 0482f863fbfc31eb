"""Text classification as a backend of Stoker: `config` is what a user writes, `framework` what the runner must know."""
