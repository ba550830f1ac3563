import sys

from vivace.cli.main import main

sys.exit(main())
