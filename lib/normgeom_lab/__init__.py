"""What single chapters build, train, measure and draw: one module a chapter, and what several of them share."""
