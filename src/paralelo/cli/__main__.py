import sys

from paralelo.cli import main

sys.exit(main())
