"""Names of schemes that others know, without what they need to run."""

PLAIN = "plain DDP"
ALONE = "no exchange"


def measured(name: str) -> bool:
    """Whether what is sent depends on the link."""
    return name.endswith(", seconds")
