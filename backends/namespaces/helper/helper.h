/* What the jobs of the helper share. */
#ifndef HELPER_H
#define HELPER_H

/* Says what failed and why; gives what the program ends with then. */
int failed(const char *what);

/* The jobs about projects, with the words after the job's name. Each ends with 0, 1 where something failed, or NO_QUOTA. */
#define NO_QUOTA 3
int unused_project(const char *first, const char *path);
int join_project(const char *id, const char *path);
int limit_project(const char *id, const char *kib, const char *path);

#endif
