# SPDX-License-Identifier: Apache-2.0
# The one kernel of the mock: a call across sections, so that the linked ELF keeps a relocation.
.section .start, "ax"
.globl _start
_start:
  call work
  ret

.section .text.work, "ax"
work:
  ret
