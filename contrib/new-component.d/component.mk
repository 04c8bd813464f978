# @FRAMEWORK@/@NAME@, against an installed Pinrail. "make check" runs the framework's conformance suite; "make install"
# copies the component to where Pinrail looks for components.
COMPONENT = @FRAMEWORK@_@NAME@
CFLAGS ?= -O2 -g
WARNINGS = -Wall -Wextra
PKG_CONFIG ?= pkg-config
PINRAIL_CONFORM ?= pinrail_conform

$(COMPONENT).so: $(COMPONENT).c $(wildcard *.h)
	$(CC) -std=c11 $(WARNINGS) $(CFLAGS) $$($(PKG_CONFIG) --cflags pinrail) -shared -fPIC -pthread $(COMPONENT).c -o $@

check: $(COMPONENT).so
	PINRAIL_CONFORM='$(PINRAIL_CONFORM)' sh ./conform_test.sh

install: $(COMPONENT).so
	install -D -m 755 $(COMPONENT).so $(DESTDIR)$$($(PKG_CONFIG) --variable=componentdir pinrail)/$(COMPONENT).so

clean:
	rm -f $(COMPONENT).so

.PHONY: check install clean
