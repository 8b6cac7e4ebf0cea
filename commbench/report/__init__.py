"""Everything made from the files of a run: tables, other tools' text formats and comparisons."""
