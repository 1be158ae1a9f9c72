/* Put before each of our C programs by compile.rs: one that is not built so does not build. */
#if !defined(__SSP_STRONG__)
#error "build with -fstack-protector-strong"
#endif
#if !defined(_FORTIFY_SOURCE) || _FORTIFY_SOURCE < 2
#error "build with -D_FORTIFY_SOURCE=2"
#endif
#if !defined(__OPTIMIZE__)
#error "build with -Os: without it nothing is fortified"
#endif
#if !defined(__PIE__)
#error "build with -fPIE"
#endif
