# What `make test` builds and runs; included by ../Makefile.
FAKE := $(wildcard test/driver/*.c)
WORLD := test/driver/world.c test/driver/clock.c test/driver/scheduler.c
HARNESS := test/harness.c $(WORLD) $(REGION)
UNIT := $(HARNESS) test/share.c test/runner.c $(wildcard test/unit/*.c)
TEST_HEADERS := $(wildcard test/*.h test/driver/*.h limiter/*.h)
TEST_CFLAGS := -std=c11 -D_GNU_SOURCE -O1 -g -Wall -Wextra -Werror -Wno-missing-declarations -pthread

# The fake libcuda.so.1, below OUT/test/driver, in the sanitizers' flavours too.
define fake
$(OUT)/test/driver$(1)/libcuda.so.1: $(FAKE) $(TEST_HEADERS) test/tests.mk
	@mkdir -p $$(@D)
	$(CC) $(TEST_CFLAGS) -O2 -fPIC $(2) -shared -Wl,-Bsymbolic -Wl,-soname,libcuda.so.1 $(FAKE) -o $$@.$$$$$$$$ && mv $$@.$$$$$$$$ $$@
endef
$(eval $(call fake,,))

$(OUT)/test/limiter-tests: $(UNIT) $(TEST_HEADERS) $(OUT)/cuda/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) $(UNIT) -L$(OUT)/cuda -l:libcuda.so.1 -Wl,--allow-shlib-undefined -o $@.$$$$ && mv $@.$$$$ $@

$(OUT)/test/shares: $(HARNESS) test/share.c test/shares/shares.c $(TEST_HEADERS) $(OUT)/cuda/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) $(HARNESS) test/share.c test/shares/shares.c -L$(OUT)/cuda -l:libcuda.so.1 -Wl,--allow-shlib-undefined -o $@.$$$$ && mv $@.$$$$ $@

$(OUT)/test/property: $(HARNESS) $(wildcard test/property/*) $(TEST_HEADERS) $(OUT)/cuda/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) $(HARNESS) $(wildcard test/property/*.c) -L$(OUT)/cuda -l:libcuda.so.1 -Wl,--allow-shlib-undefined -o $@.$$$$ && mv $@.$$$$ $@

$(OUT)/test/fuzz: $(HARNESS) test/fuzz/fuzz.c test/property/actions.c test/property/actions.h $(TEST_HEADERS) $(OUT)/cuda/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) $(HARNESS) test/fuzz/fuzz.c test/property/actions.c -L$(OUT)/cuda -l:libcuda.so.1 -Wl,--allow-shlib-undefined -o $@.$$$$ && mv $@.$$$$ $@

$(OUT)/test/preloaded: $(HARNESS) test/preloaded/preloaded.c $(TEST_HEADERS) $(OUT)/test/driver/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) $(HARNESS) test/preloaded/preloaded.c -L$(OUT)/test/driver -l:libcuda.so.1 -Wl,--allow-shlib-undefined -ldl -o $@.$$$$ && mv $@.$$$$ $@

$(OUT)/test/cdi-hook-tests: $(wildcard test/cdi-hook/*) test/runner.c $(TEST_HEADERS) $(HOOK)
	@mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) $(TEST_DEFINES) test/runner.c $(wildcard test/cdi-hook/*.c) -o $@.$$$$ && mv $@.$$$$ $@

HOOK_PARTS := $(filter-out cdi-hook/hook.c,$(wildcard cdi-hook/*.c))
$(OUT)/test/fuzz-hook: test/fuzz/hook.c $(HOOK_PARTS) $(wildcard cdi-hook/*.h) $(TEST_HEADERS)
	@mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) test/fuzz/hook.c $(HOOK_PARTS) -o $@.$$$$ && mv $@.$$$$ $@

# Sanitizers: in the test program, the limiter and the fake driver alike. A compiler that cannot link one is left alone.
SANITIZE_address := -fsanitize=address,undefined -fno-sanitize-recover=undefined
SANITIZE_thread := -fsanitize=thread

define sanitized
$(OUT)/test/driver/$(1)/libcuda.so.1: $(FAKE) $(TEST_HEADERS) test/tests.mk
	@mkdir -p $$(@D)
	$(CC) $(TEST_CFLAGS) -fPIC $(SANITIZE_$(1)) -shared -Wl,-Bsymbolic -Wl,-soname,libcuda.so.1 $(FAKE) -o $$@.$$$$$$$$ && mv $$@.$$$$$$$$ $$@

$(OUT)/test/limiter-tests-$(1): $(UNIT) $(TEST_HEADERS) $(OUT)/$(1)/cuda/libcuda.so.1 $(OUT)/test/driver/$(1)/libcuda.so.1
	$(CC) $(TEST_CFLAGS) $(SANITIZE_$(1)) $(UNIT) -L$(OUT)/$(1)/cuda -l:libcuda.so.1 -Wl,--allow-shlib-undefined -o $$@.$$$$$$$$ && mv $$@.$$$$$$$$ $$@

$(OUT)/test/fuzz-$(1): $(HARNESS) test/fuzz/fuzz.c test/property/actions.c $(TEST_HEADERS) $(OUT)/$(1)/cuda/libcuda.so.1 $(OUT)/test/driver/$(1)/libcuda.so.1
	$(CC) $(TEST_CFLAGS) $(SANITIZE_$(1)) $(HARNESS) test/fuzz/fuzz.c test/property/actions.c -L$(OUT)/$(1)/cuda -l:libcuda.so.1 -Wl,--allow-shlib-undefined -o $$@.$$$$$$$$ && mv $$@.$$$$$$$$ $$@
endef
$(eval $(call sanitized,address))
$(eval $(call sanitized,thread))

$(OUT)/test/fuzz-hook-address: test/fuzz/hook.c $(HOOK_PARTS) $(wildcard cdi-hook/*.h) $(TEST_HEADERS)
	@mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) $(SANITIZE_address) test/fuzz/hook.c test/fuzz/address.c $(HOOK_PARTS) -o $@.$$$$ && mv $@.$$$$ $@

$(OUT)/address/cdi-hook/koordra-cdi-hook: $(wildcard cdi-hook/*) test/fuzz/address.c
	@mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) $(SANITIZE_address) $(wildcard cdi-hook/*.c) test/fuzz/address.c -o $@.$$$$ && mv $@.$$$$ $@

SANITIZED := $(if $(call can,$(SANITIZE_address)),$(OUT)/test/limiter-tests-address $(OUT)/test/fuzz-address \
	$(OUT)/test/fuzz-hook-address $(OUT)/address/cdi-hook/koordra-cdi-hook) \
	$(if $(call can,$(SANITIZE_thread)),$(OUT)/test/limiter-tests-thread)

.PHONY: test-programs
test-programs: all $(OUT)/defects/cuda/libcuda.so.1 $(OUT)/test/driver/libcuda.so.1 $(OUT)/test/limiter-tests $(OUT)/test/property $(OUT)/test/fuzz \
	$(OUT)/test/preloaded $(OUT)/test/tenant $(OUT)/test/cdi-hook-tests $(OUT)/test/fuzz-hook $(SANITIZED)

# Each library and program is one call of the compiler, so they are built side by side.
JOBS ?= $(shell nproc 2>/dev/null || echo 2)

test:
	@$(MAKE) -s -j$(JOBS) test-programs
	@sh test/run $(abspath $(OUT))

SOAK_OPERATIONS ?= 10000000
soak:
	@$(MAKE) -s -j$(JOBS) test-programs
	@OPERATIONS=$(SOAK_OPERATIONS) FUZZ_SEQUENCES=5000 sh test/run $(abspath $(OUT))

# For the tests in Python.
$(OUT)/test/tenant: test/tenant/tenant.c $(WORLD) $(TEST_HEADERS)
	@mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) test/tenant/tenant.c $(WORLD) -ldl -o $@.$$$$ && mv $@.$$$$ $@

# The same, linked with the driver, which its RPATH names.
$(OUT)/test/tenant-rpath: test/tenant/tenant.c $(WORLD) $(TEST_HEADERS) $(OUT)/test/driver/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) test/tenant/tenant.c $(WORLD) -ldl -Wl,--no-as-needed -L$(OUT)/test/driver -l:libcuda.so.1 \
		-Wl,--disable-new-dtags,-rpath,/usr/local/cuda/compat -o $@.$$$$ && mv $@.$$$$ $@

$(OUT)/test/layout: test/layout/layout.c limiter/region.h
	@mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) test/layout/layout.c -o $@.$$$$ && mv $@.$$$$ $@

.PHONY: python-programs
python-programs: all $(OUT)/defects/nvml-share/libnvidia-ml.so.1 $(OUT)/test/driver/libcuda.so.1 $(OUT)/test/limiter-tests $(OUT)/test/shares $(OUT)/test/property $(OUT)/test/tenant $(OUT)/test/tenant-rpath $(OUT)/test/layout

$(OUT)/bench: bench/bench.c $(HARNESS) $(TEST_HEADERS) $(OUT)/cuda/libcuda.so.1 $(OUT)/test/driver/libcuda.so.1
	$(CC) $(TEST_CFLAGS) -O2 bench/bench.c $(HARNESS) -L$(OUT)/cuda -l:libcuda.so.1 -Wl,--allow-shlib-undefined -o $@.$$$$ && mv $@.$$$$ $@

bench: $(OUT)/bench
	@sh bench/run $(abspath $(OUT))
