import sys

from vivace.cli.entry import main

sys.exit(main())
