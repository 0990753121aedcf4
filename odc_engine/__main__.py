from odc_engine.cli import main

raise SystemExit(main())
