"""What is measured of a document. Thresholds stand elsewhere, so changing one measures nothing again."""
