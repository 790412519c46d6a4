"""Names of some schemes, for modules that do not import PyTorch."""

PLAIN = "plain DDP"
ALONE = "no exchange"


def measured(name: str) -> bool:
    """Whether the scheme decides by measured seconds. The messages of such a scheme depend on the link."""
    return name.endswith(", seconds")
