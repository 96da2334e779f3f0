/* The runner. Without arguments: every test; with names: those. Each in a fresh process of this same program:
 *
 *     limiter-tests [--flavour NAME] [--defect DEFECT] [TEST ...]
 *
 * KOORDRA_OUT is the folder with the built libraries. --defect expects each test to fail, and counts that as passed. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>

#include "harness.h"

static struct test *tests;

void test_add(struct test *test)
{
    test->next = tests;
    tests = test;
}

static void remove_tree(const char *path)
{
    DIR *directory = opendir(path);
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        char inner[600];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name);
        if (unlink(inner) != 0)
            remove_tree(inner);
    }
    if (directory)
        closedir(directory);
    rmdir(path);
}

static void set(const char *name, const char *format, const char *a, const char *b)
{
    char text[1024];
    snprintf(text, sizeof text, format, a, b);
    setenv(name, text, 1);
}

static void run_here(const char *program, const char *flavour, const char *defect, const char *name)
{
    const char *out = getenv("KOORDRA_OUT");
    out = out ? out : "../build/native";
    set("LD_LIBRARY_PATH", "%s%s/cuda", out, flavour);
    set("KOORDRA_DRIVER_FOLDER", "%s/test/driver%s", out, strcmp(flavour, "/address") == 0 || strcmp(flavour, "/thread") == 0 ? flavour : "");
    set("KOORDRA_LIMITER_FOLDER", "%s/regions", folder, "");
    set("KOORDRA_FAKE_CUDA", "%s", folder, "");
    set("KOORDRA_TEST_FOLDER", "%s", folder, "");
    if (defect)
        setenv("KOORDRA_DEFECT", defect, 1);
    char *const arguments[] = {(char *)program, "--inside", (char *)name, NULL};
    execv(program, arguments);
    _exit(127);
}

/* A test that hangs has failed. */
static bool run_one(const char *program, const char *flavour, const char *defect, const char *name)
{
    const char *base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(folder, sizeof folder, "%s/koordra-test-XXXXXX", base);
    if (!mkdtemp(folder))
        return false;
    pid_t process = fork();
    if (process == 0) {
        alarm(defect ? 8 : 600);
        if (defect) {
            int nothing = open("/dev/null", O_WRONLY);
            dup2(nothing, 2);
        }
        run_here(program, flavour, defect, name);
    }
    int status = 1;
    waitpid(process, &status, 0);
    remove_tree(folder);
    bool passed = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!passed && !defect)
        fprintf(stderr, "FAILED %s (%s %d)\n", name, WIFSIGNALED(status) ? "signal" : "exit", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    return passed;
}

static int run_inside(const char *name)
{
    snprintf(folder, sizeof folder, "%s", getenv("KOORDRA_TEST_FOLDER"));
    for (struct test *test = tests; test; test = test->next)
        if (strcmp(test->name, name) == 0) {
            test->run();
            return 0;
        }
    return 2;
}

static bool wanted(const char *name, int count, char **names)
{
    for (int at = 0; at < count; at++)
        if (strcmp(names[at], name) == 0)
            return true;
    return count == 0;
}

int main(int count, char **arguments)
{
    const char *flavour = "", *defect = NULL, *program = "/proc/self/exe";
    char self[512];
    ssize_t length = readlink(program, self, sizeof self - 1);
    self[length > 0 ? length : 0] = 0;
    if (count == 3 && strcmp(arguments[1], "--inside") == 0)
        return run_inside(arguments[2]);
    int at = 1;
    for (; at + 1 < count && arguments[at][0] == '-'; at += 2) {
        if (strcmp(arguments[at], "--flavour") == 0)
            flavour = arguments[at + 1];
        else if (strcmp(arguments[at], "--defect") == 0)
            defect = arguments[at + 1];
    }
    unsigned passed = 0, failed = 0;
    for (struct test *test = tests; test; test = test->next) {
        if (!wanted(test->name, count - at, arguments + at))
            continue;
        bool good = run_one(self, flavour, defect, test->name);
        if (defect && good)
            fprintf(stderr, "NOT CAUGHT %s: %s passes with the defect\n", defect, test->name);
        good = defect ? !good : good;
        passed += good;
        failed += !good;
    }
    printf("%u passed, %u failed\n", passed, failed);
    return failed || !passed;
}
