/* SPDX-License-Identifier: BSD-3-Clause */
/* consumer.c - prints the version of Pinrail and which components are open. */
#include <pinrail/listing.h>
#include <pinrail/pinrail.h>
#include <stdio.h>

int main(void) {
  pinrail_component_info_t component = {.size = sizeof(component)};
  if (pinrail_init(NULL) != PINRAIL_SUCCESS) return 1;
  printf("Pinrail %s\n", pinrail_version());
  for (size_t i = 0; pinrail_component_at(i, &component) == PINRAIL_SUCCESS; ++i) {
    printf("  %s %s: %s\n", component.framework, component.name, pinrail_status_name(component.status));
  }
  return pinrail_finalize();
}
