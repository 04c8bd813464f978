# make -f consumer.mk && ./consumer
# An installation that pkg-config does not search: PKG_CONFIG_PATH=<prefix>/lib/pkgconfig make -f consumer.mk
PKG_CONFIG ?= pkg-config
consumer: consumer.c
	$(CC) -Wall $(CFLAGS) $$($(PKG_CONFIG) --cflags pinrail) consumer.c -o $@ $$($(PKG_CONFIG) --libs pinrail)
