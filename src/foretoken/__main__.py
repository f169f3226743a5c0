"""`python -m foretoken`: the command line, as `accelerate launch -m foretoken` starts it."""

from foretoken.cli import main

if __name__ == "__main__":
    main()
