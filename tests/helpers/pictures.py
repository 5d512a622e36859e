"""What figures of matplotlib show."""

from matplotlib.text import Text


def words(picture):
    """Every text of a figure."""
    return [x.get_text() for x in picture.findobj(Text) if x.get_text()]


def boxes(picture, gid):
    """The paths of everything that has a name."""
    found = picture.findobj(lambda x: x.get_gid() == gid)
    return [path for collection in found for path in collection.get_paths()]
