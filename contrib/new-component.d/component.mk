# @FRAMEWORK@/@NAME@, against an installed Pinrail. "make check" runs the conformance suite of the framework, which names
# each rule that is broken by its number in the file RULES of Pinrail (share/doc/pinrail/RULES). "make install" copies
# the component to where Pinrail looks for components.
COMPONENT = @FRAMEWORK@_@NAME@
CFLAGS ?= -O2 -g
WARNINGS = -Wall -Wextra
PKG_CONFIG ?= pkg-config
PINRAIL_CONFORM ?= pinrail_conform

$(COMPONENT).so: $(COMPONENT).c $(wildcard *.h)
	$(CC) -std=c11 $(WARNINGS) $(CFLAGS) $$($(PKG_CONFIG) --cflags pinrail) -shared -fPIC -pthread $(COMPONENT).c -o $@

check: $(COMPONENT).so
	$(PINRAIL_CONFORM) @FRAMEWORK@ ./$(COMPONENT).so

install: $(COMPONENT).so
	install -D -m 755 $(COMPONENT).so $(DESTDIR)$$($(PKG_CONFIG) --variable=componentdir pinrail)/$(COMPONENT).so

clean:
	rm -f $(COMPONENT).so

.PHONY: check install clean
