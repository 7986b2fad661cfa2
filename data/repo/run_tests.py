"""Compare every year with Python's own calendar, a line for each: python run_tests.py"""

import calendar
import sys

sys.dont_write_bytecode = True  # before the first import of a module that may be edited

from days import day_of_year, days_in_month  # noqa: E402
from page import page  # noqa: E402

YEARS = range(1583, 2101)


def fault(year):
    """What is wrong about a year; None for nothing."""
    for month in range(1, 13):
        length = calendar.monthrange(year, month)[1]
        if days_in_month(year, month) != length:
            return f"month {month} has {length} days, not {days_in_month(year, month)}"
    last = 366 if calendar.isleap(year) else 365
    if day_of_year(year, 12, 31) != last:
        return f"its last day is number {last}, not {day_of_year(year, 12, 31)}"
    if page(year, 2).split()[7:] != [str(day) for day in range(1, calendar.monthrange(year, 2)[1] + 1)]:
        return "the page of February is wrong"
    return None


def main():
    failed = 0
    for year in YEARS:
        found = fault(year)
        print(f"{year}: FAILED: {found}" if found else f"{year}: ok, twelve months and the last day agree")
        failed += found is not None
    print(f"{failed} of {len(YEARS)} years failed" if failed else f"all {len(YEARS)} years agree")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
