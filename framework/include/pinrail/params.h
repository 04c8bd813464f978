/* SPDX-License-Identifier: BSD-3-Clause
 * params.h - MCA parameters: how they are declared, listed, read and set.
 *
 * A parameter's full name is <framework>_<component>_<name>. Its sources, in rising precedence: the default, the
 * site's file, the user's file, the files of mca_base_param_files, the environment, the command line or the API, the
 * site's override file.
 */
#ifndef PINRAIL_PARAMS_H
#define PINRAIL_PARAMS_H

#include <pinrail/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/** How a value is written, and which field of pinrail_param_value_t has it. */
typedef enum pinrail_param_type {
  PINRAIL_TYPE_BOOL = 0,     /**< 0 1 no yes false true off on */
  PINRAIL_TYPE_INT = 1,      /**< decimal or 0x..., with sign */
  PINRAIL_TYPE_UNSIGNED = 2, /**< decimal or 0x...; "unlimited" is UINT64_MAX */
  PINRAIL_TYPE_SIZE = 3,     /**< bytes; suffixes K M G T (powers of 1024); "unlimited" is UINT64_MAX */
  PINRAIL_TYPE_STRING = 4,
  PINRAIL_TYPE_ENUM = 5 /**< one of the values, by name or by number */
} pinrail_param_type_t;

/** When a parameter may be set. */
typedef enum pinrail_param_scope {
  PINRAIL_SCOPE_READONLY = 1, /**< may be set until pinrail_init() returns */
  PINRAIL_SCOPE_SETTABLE = 2  /**< may be set at any time */
} pinrail_param_scope_t;

/** Where a value came from, in rising precedence. */
typedef enum pinrail_param_source {
  PINRAIL_SOURCE_DEFAULT = 0,
  PINRAIL_SOURCE_FILE = 1, /**< source_file and source_line say where */
  PINRAIL_SOURCE_ENVIRONMENT = 2,
  PINRAIL_SOURCE_COMMAND_LINE = 3,
  PINRAIL_SOURCE_API = 4,
  PINRAIL_SOURCE_OVERRIDE = 5 /**< the site's override file */
} pinrail_param_source_t;

/** One value that a parameter of type ENUM may have. */
typedef struct pinrail_enum_value {
  int64_t value;    /**< as pinrail_param_value_t has it in i */
  const char *name; /**< NULL ends a list */
} pinrail_enum_value_t;

/** The declaration of one parameter, as data: the program, the listing tool and the tests read the same table. */
typedef struct pinrail_param {
  size_t size;                        /**< sizeof(pinrail_param_t) */
  const char *name;                   /**< without framework and component */
  const char *fallback;               /**< the default, as a user would type it */
  const char *help;                   /**< one or two sentences: effect, unit, meaning of 0, cost */
  pinrail_param_type_t type;          /**< how the value is written */
  pinrail_param_scope_t scope;        /**< when it may be set */
  int level;                          /**< 1 (end user) to 9 (developer), as Open MPI's */
  const pinrail_enum_value_t *values; /**< ENUM: the allowed values */
  int64_t minimum;             /**< INT, UNSIGNED, SIZE: inclusive; this and maximum 0: no bound but the type's */
  int64_t maximum;             /**< inclusive */
  const char *const *synonyms; /**< former full names, ended by NULL; or NULL */
} pinrail_param_t;

/** A value. The parameter's type says which field has it. */
typedef union pinrail_param_value {
  int64_t i;     /**< BOOL (0 or 1), INT, ENUM */
  uint64_t u;    /**< UNSIGNED, SIZE */
  const char *s; /**< STRING, never NULL */
} pinrail_param_value_t;

/** The present state of one parameter. Strings live until pinrail_finalize(), or until the parameter is set. */
typedef struct pinrail_param_info {
  size_t size;                        /**< in: sizeof(pinrail_param_info_t) */
  const char *name;                   /**< full name */
  const char *framework;              /**< "" for the base */
  const char *component;              /**< "" or "base" for a parameter of a whole framework */
  const char *value;                  /**< as text */
  pinrail_param_value_t typed;        /**< the value; declaration->type says which field */
  pinrail_param_source_t source;      /**< the source that decided */
  const char *source_file;            /**< "" if the value is not from a file */
  int source_line;                    /**< the line in source_file, from 1; 0 without a file */
  const pinrail_param_t *declaration; /**< the component's or the library's */
} pinrail_param_info_t;

/** Returns the number of declared parameters; 0 before init and after finalize. */
PINRAIL_API size_t pinrail_param_count(void);

/**
 * Describes the index-th parameter, in the order of framework, component, name. NOT_FOUND past the end, or before
 * init.
 */
PINRAIL_API pinrail_status_t pinrail_param_at(size_t index, pinrail_param_info_t *info_out);

/** Describes the parameter of that full name or synonym. NOT_FOUND if there is none, or before init. */
PINRAIL_API pinrail_status_t pinrail_param_find(const char *name, pinrail_param_info_t *info_out);

/**
 * Sets a SETTABLE parameter. PERM: the parameter is not SETTABLE, or the override file sets it. BAD_PARAM: the value
 * is malformed. NOT_FOUND: there is no such parameter.
 */
PINRAIL_API pinrail_status_t pinrail_param_set(const char *name, const char *value);

/** The source's name: "default", "file", ... */
PINRAIL_API const char *pinrail_param_source_name(pinrail_param_source_t source);

#ifdef __cplusplus
}
#endif

#endif
