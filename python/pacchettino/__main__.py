"""`python -m pacchettino`."""

import sys

from pacchettino._command import main

if __name__ == "__main__":
    sys.exit(main())
