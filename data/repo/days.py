"""Counting days."""

from leap import is_leap

LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def days_in_month(year, month):
    """The days of a month, which counts from 1."""
    return LENGTHS[month - 1] + (month == 2 and is_leap(year))


def day_of_year(year, month, day):
    """Which day of the year this is, from 1."""
    return sum(days_in_month(year, earlier) for earlier in range(1, month)) + day
