/* Linked into a static binary of glibc alone: names of hosts, users and groups come from files and by DNS, whatever
 * /etc/nsswitch.conf lists. Its other modules are shared libraries of the node's own glibc, which may be of another version
 * than the one in the binary: they would not load, or bring a second C library into the process.
 *
 * It runs before main, when there is one thread. */

#include <nss.h>
#include <stdlib.h>

__attribute__((constructor)) static void use_built_in_modules(void)
{
	/* It fails only without memory. */
	if (__nss_configure_lookup("hosts", "files dns") != 0 || __nss_configure_lookup("passwd", "files") != 0 ||
	    __nss_configure_lookup("group", "files") != 0)
		abort();
}
