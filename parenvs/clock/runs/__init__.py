"""Plans that run in local processes, beside what is predicted of them."""
