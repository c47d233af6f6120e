"""The edge: verifies drafts with a large target model and schedules the devices."""
