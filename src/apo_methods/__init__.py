"""Methods besides those of the framework: ablations of APO, rival losses and advantages, parts, diagnostics."""
