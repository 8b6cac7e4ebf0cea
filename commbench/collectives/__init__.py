"""What can be measured: operations, patterns, element types, cases and suites. Plain data; imports no backend."""
