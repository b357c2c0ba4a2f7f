// A program that does nothing: for the headers that all tests include, read once (LockstepTests.cmake).
int main() {}
