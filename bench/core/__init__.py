"""The words of the suite: pure data and arithmetic, importing nothing above this folder."""
