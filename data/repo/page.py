"""The page of a month."""

from datetime import date

from days import days_in_month


def page(year, month):
    """The days of a month in weeks, a line for each."""
    cells = ["  "] * date(year, month, 1).weekday()
    cells += [f"{day:2}" for day in range(1, days_in_month(year, month) + 1)]
    weeks = [" ".join(cells[at : at + 7]) for at in range(0, len(cells), 7)]
    return "\n".join(["Mo Tu We Th Fr Sa Su", *weeks])
