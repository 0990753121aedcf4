from odcsim.cli import main

raise SystemExit(main())
