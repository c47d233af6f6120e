"""CoVSpec's Tables I and II and a sweep over links: systems as data, contests, accounting, pages."""
