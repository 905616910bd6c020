"""What each chapter builds, trains, measures and draws: one module or package per chapter, and what several share."""
