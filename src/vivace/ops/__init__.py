"""Operations: each folder holds what an op means, its cases, its cost, and beside that its implementations."""
