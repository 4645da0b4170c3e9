// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "llm_runtime/decode/commands.h"
#include "llm_runtime/support/errors.h"

namespace llm_runtime::decode {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(DecodeCommands, AcceptsTheThreeInputModesAndInference) {
  EXPECT_NO_THROW(validate_decode_commands({}));
  EXPECT_NO_THROW(validate_decode_commands(
      {.reset_batch = true, .has_sampling = true, .has_slot_remap = true}));
  EXPECT_NO_THROW(validate_decode_commands({.reload_inputs = true}));
  EXPECT_NO_THROW(validate_decode_commands({.reload_inputs = true,
                                            .reload_sampling_params = true,
                                            .reset_sampling_state = true,
                                            .has_sampling = true,
                                            .has_slot_remap = true}));
  EXPECT_NO_THROW(validate_decode_commands(
      {.reload_inputs = false, .has_sampling = true, .resident_feedback = true}));
  EXPECT_NO_THROW(validate_decode_commands({.reload_inputs = false,
                                            .reload_page_table = true,
                                            .reload_sampling_params = true,
                                            .has_sampling = true,
                                            .resident_feedback = true}));
}

struct Refusal {
  DecodeCommands commands;
  const char* text;
};

class DecodeCommandsRefused : public ::testing::TestWithParam<Refusal> {};

TEST_P(DecodeCommandsRefused, NamesTheCommand) {
  EXPECT_THAT([] { validate_decode_commands(GetParam().commands); },
              ThrowsMessage<InvalidValue>(HasSubstr(GetParam().text)));
}

INSTANTIATE_TEST_SUITE_P(
    Table, DecodeCommandsRefused,
    ::testing::Values(
        Refusal{{.reload_page_table = true}, "reload_page_table needs"},
        Refusal{{.reload_sampling_params = true, .has_sampling = true},
                "reload_sampling_params needs an explicit"},
        Refusal{{.reset_sampling_state = true, .has_sampling = true},
                "reset_sampling_state needs an explicit"},
        Refusal{{.reset_batch = true, .reload_inputs = true}, "reset_batch"},
        Refusal{{.reset_batch = true,
                 .reload_inputs = false,
                 .has_sampling = true,
                 .resident_feedback = true},
                "reset_batch"},
        Refusal{{.reload_inputs = true, .reload_page_table = true}, "exclude each other"},
        Refusal{{.reload_inputs = false,
                 .reset_sampling_state = true,
                 .has_sampling = true,
                 .resident_feedback = true},
                "reset_sampling_state needs reload_inputs=True"},
        Refusal{{.reload_inputs = false, .resident_feedback = true}, "needs sampling_params"},
        Refusal{{.reload_inputs = false, .has_sampling = true}, "no device feedback"},
        Refusal{{.reload_inputs = true, .reload_sampling_params = true},
                "reload_sampling_params needs sampling_params"},
        Refusal{{.reload_inputs = true, .reset_sampling_state = true},
                "reset_sampling_state needs sampling_params"},
        Refusal{{.reload_inputs = false,
                 .has_sampling = true,
                 .has_slot_remap = true,
                 .resident_feedback = true},
                "slot_remap needs"}));

}  // namespace
}  // namespace llm_runtime::decode
